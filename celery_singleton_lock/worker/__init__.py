"""What a worker process adds to its tasks: start-up checks, and the end of killed children's locks."""
