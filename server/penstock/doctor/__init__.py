"""`python -m penstock.doctor`: says what would become of a model on this machine."""
