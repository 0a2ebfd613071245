"""`semmix choose`: when to ask a person."""

from semmix.deploy.threshold import Choose, choose_command


class ChooseCommand(Choose):
    """Find when to ask a person, from what a wrong answer and a question cost."""

    run = choose_command
