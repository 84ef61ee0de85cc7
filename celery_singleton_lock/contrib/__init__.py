"""Where a lock meets other libraries: each module here imports the one library it is named after."""
