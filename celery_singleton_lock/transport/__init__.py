"""Bytes to servers and back, each operation bounded. It carries requests and does not know what they mean."""
