"""`semmix serve`: answer images over HTTP."""

from semmix.deploy.serve import Serve, serve_command


class ServeCommand(Serve):
    """Answer images over HTTP."""

    run = serve_command
