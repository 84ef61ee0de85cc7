"""A shop, as a user of the package would write it.

Read ``tasks.py`` first; around it are ``app.py`` and ``config.py`` (Celery), ``models.py`` (the database) and
``gateway.py`` (the services that it calls).
"""
