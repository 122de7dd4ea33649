"""Several jobs on one GPU: who may be together, how well they go together, and where a share goes."""
