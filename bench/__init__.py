"""Measurements that anyone can repeat: `python -m bench.<name>`. Nothing in the product imports them."""
