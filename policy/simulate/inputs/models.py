# SPDX-License-Identifier: Apache-2.0
"""Values that the published traces lack: iteration times, application classes, sizes of applications."""

from topology.scores import PAL_CLASSES

ITERATION_S = {
    "BERT": 0.179,
    "DCGAN": 0.0469266931,
    "GPT2": 3.5714,
    "PointNet": 0.28125,
    "resnet50": 0.17540429367763434,
    "vgg19": 0.300610341,
}
"""Seconds of one iteration on a typical GPU, from PAL's artifact."""

_LETTERS = {"resnet50": "A", "GPT2": "B", "DCGAN": "B", "BERT": "B", "vgg19": "C", "PointNet": "D"}


def app_class(model: str) -> str:
    """Returns PAL's class of a model; an unknown model is `compute`, the class that loses most on a slow GPU.

    >>> app_class("vgg19"), app_class("unheard-of")
    ('memory', 'compute')
    """
    letter = _LETTERS.get(model, "A")
    return PAL_CLASSES.get(letter, letter)


GPU_HOURS = {
    "ncf": (1 / 60, 1.0),
    "cifar10": (1 / 60, 1.0),
    "deepspeech2": (1.0, 10.0),
    "bert": (1.0, 10.0),
    "yolov3": (10.0, 100.0),
    "imagenet": (100.0, 1000.0),
}
"""The range of GPU hours of the recorded jobs that Sia replaced by each application.

The source is Sia's generator (github.com/siasosp23/artifacts, sia-simulator/utils/generate_workload.py). It has jobs of
at least a minute and less than 1, 10, 100 and 1,000 GPU hours. In Pollux, its origin, `ncf` shares the first class with
`cifar10`.
"""
