"""`semmix serve`: answer images over HTTP."""

from semmix.deploy.serve import Serve, serve_command


class ServeCommand(Serve):
    """Answer images over HTTP."""

    def run(self) -> None:
        """Serve until stopped."""
        serve_command(self)
