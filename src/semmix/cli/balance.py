"""`semmix balance`: does a loss treat sharp and soft labels alike?"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from semmix.calibration.balance import CURVES, Loss, Row, balance_table, draw_balance, load_loss, spread_deltas, verdict
from semmix.core.errors import require
from semmix.core.progress import say
from semmix.report.table import Table

FIGURES = (".svg", ".png", ".pdf")


@dataclass(frozen=True, kw_only=True)
class BalanceCommand:
    """Ask whether a loss treats sharp and soft labels alike."""

    loss: Positional[str] = "l2"
    """ce, focal, l2, or your own as package.module:function of (p, q)."""
    gamma: float = 1.0
    """Exponent of focal."""
    alpha1: float = 0.9
    """Share of the first class in the sharper label."""
    alpha2: float = 0.6
    """Its share in the softer label."""
    num_classes: int = 2
    """Classes in all; labels name two of them."""
    num_deltas: int = 11
    """Lines of the table, from delta 0 to the labels' own distance."""
    figure: Path | None = Path("balance.svg")
    """File of the figure, with ce, focal and l2 beside the loss asked for."""

    def __post_init__(self):
        what = "a table needs both ends and what is between"  # at both ends every loss like ce is balanced
        require(self.num_deltas >= 3, what, self.num_deltas, "use num_deltas >= 3")
        fits, seen = (
            self.loss == "focal" or self.gamma == BalanceCommand.gamma,
            f"gamma={self.gamma:g}, loss={self.loss}",
        )
        require(fits, "gamma belongs to focal", seen, "leave it out, or ask of focal")
        known, fix = not self.figure or self.figure.suffix.lower() in FIGURES, f"end its name in {', '.join(FIGURES)}"
        require(known, "unknown kind of figure", self.figure, fix)

    @property
    def asked(self) -> dict[str, Loss]:
        """The loss by its name, with gamma where it has one."""
        name = f"focal {self.gamma:g}" if self.loss == "focal" else self.loss
        return {name: load_loss(self.loss, self.gamma)}

    def rows(self, losses: Mapping[str, Loss]) -> list[Row]:
        """Return the lines of losses at every delta."""
        deltas = spread_deltas(self.alpha1, self.alpha2, self.num_deltas)
        return balance_table(losses, self.alpha1, self.alpha2, deltas, self.num_classes)

    def run(self) -> None:
        """Print the table of one loss and draw it among the known ones."""
        rows, lines = self.rows(self.asked), []
        for row in rows:
            formula = "" if row.closed_form is None else f"{row.closed_form:.6e}"
            lines.append([f"{row.delta:.6f}", f"{row.beta:.6e}", formula, f"{row.p1:.5f}", f"{row.p2:.5f}"])
        say(Table(["delta", "beta", "closed form", "p1", "p2"], lines, align="rrrrr").text())
        say(verdict(rows))
        if self.figure:
            others = {name: loss for name, loss in CURVES.items() if name not in self.asked}
            draw_balance([*rows, *self.rows(others)], self.figure)
            say(f"figure in {self.figure}")
