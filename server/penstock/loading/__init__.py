"""From a model's folder to tensors: JSON files, headers, checks, weights, and the memory that they may take."""
