"""The ranks that hold one model: how they find each other, what is whose, and their collectives."""
