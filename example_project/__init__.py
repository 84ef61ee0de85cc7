"""A small shop whose tasks run alone on the order they work for: ``python -m example_project`` shows it.

``shop``: what an application writes. ``demo``: what stages the shop, kills its processes and judges what is left.
"""
