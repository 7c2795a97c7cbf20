"""The benchmark: fair, reproducible figures of this product beside PyTorch and its peers."""
