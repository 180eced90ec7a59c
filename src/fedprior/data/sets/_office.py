"""What the two forms of Office-Caltech-10 have in common."""

CITATION = "B. Gong et al. Geodesic Flow Kernel for Unsupervised Domain Adaptation. CVPR 2012."
DOMAINS = {"amazon": 958, "caltech10": 1123, "dslr": 157, "webcam": 295}
