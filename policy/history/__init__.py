"""The past of jobs: how long they ran and how large they were."""
