# SPDX-License-Identifier: Apache-2.0
"""One file or folder for each opinion about the place of a job."""
