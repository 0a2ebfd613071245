"""The ground floor: the error, whole files, artifacts, seeds, devices, progress."""
