"""From a call's arguments to the text that names its resource, and to a store's names for it. Pure."""
