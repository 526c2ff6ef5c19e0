"""How a worker's tensors leave the device that computes and come back: by their storages, so that every view stays."""
