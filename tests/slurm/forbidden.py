# SPDX-License-Identifier: Apache-2.0
"""Changes of a waiting job that would break its place: the hook refuses them to its owner."""

OF_A_PLACE = (
    *("ReqNodeList=n2", "ReqNodeList=", "ReqNodeList=n2 TimeLimit=3", "Gres=gpu:1", "TresPerNode=gres/gpu:3"),
    *("NumNodes=2", "NumCPUs=3", "NumTasks=2", "CPUsPerTask=2", "MinCPUsNode=2", "MinMemoryNode=100", "Extra=mine"),
)
