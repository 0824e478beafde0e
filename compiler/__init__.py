"""From a layout to traced modules, passes and the files of a bundle."""
