"""`semmix balance`: does a loss treat sharp and soft labels alike?"""

from semmix.calibration.balance import BalanceConfig, run_balance


class BalanceCommand(BalanceConfig):
    """Ask whether a loss treats sharp and soft labels alike."""

    def run(self) -> None:
        """Print the table of one loss and draw it among the known ones."""
        run_balance(self)
