"""What CIFAR-10 and CIFAR-100 have in common."""

SITE = "https://www.cs.toronto.edu/~kriz/"
CITATION = "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009."
