"""Does the exporter take every family? A tiny random model of each type, exported and compared."""
