"""The engines that can be measured; each module is the main program of its own process."""
