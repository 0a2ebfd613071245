"""Training may start from weights that exist: a run, a zoo entry, an exported program, a user network."""

from semmix.core.errors import SemmixError
from semmix.networks.base_classifier import Classifier
from semmix.networks.saved import load_classifier, run_folder, saved_name
from semmix.networks.user_network import Statistics, UserClassifier, checked, is_user_network, user_classifier


def initial_classifier(
    init: str, num_classes: int, image_shape: tuple[int, int, int], named: Statistics, default: Statistics
) -> tuple[Classifier, str]:
    """Return a network, ready to predict, and the name under which it can be built again.

    `init` is the folder of a run, `zoo:NAME`, an exported program (.pt2), or package.module:name of a user network.
    Networks of runs normalise by themselves; for others see `user_classifier`.
    """
    if run_folder(init).is_dir():
        network, name = load_classifier(init)[0], saved_name(init)
        checked(network, num_classes, image_shape, init)
        normalises = True
    elif is_user_network(init):
        network, name = user_classifier(init, num_classes, image_shape, named, default), init
        normalises = not isinstance(network, UserClassifier)
    else:
        fix = "name the folder of a run, `zoo:NAME`, an exported program (.pt2) or package.module:name"
        raise SemmixError("cannot start from this", repr(init), fix)
    if normalises and any(named):
        fix = "leave out --init-mean and --init-std"
        raise SemmixError(f"{init} normalises its images by itself", named, fix)
    return network, name
