# SPDX-License-Identifier: Apache-2.0
"""Draws configurations as sites write them: comments, continued lines, any case, blanks, ranges, defaults."""

from hypothesis import strategies as st

from policy.cli.migrate.node_lines import ExactNode

COMMENTS = st.sampled_from(["", " # GPUs", "  # Gres=gpu:9 \\", "\t#"])
BLANKS = st.sampled_from([" ", "  ", "\t", " \\\n", " \\\n    "])
ENDS = st.sampled_from(["\n", "\n\n", "\r\n", "\n# NodeName=n9 Gres=gpu:1\n"])
EQUALS = st.sampled_from(["=", " = ", "= "])
GRES = ["gpu:8", "gpu:a100:8", "gpu:v100:4,gpu:a100:4", "gpu:a100:8(S:0-1),craynetwork:4", "fpga:2"]


@st.composite
def words(draw: st.DrawFn, key: str, value: str) -> str:
    """Draws one pair of key and value."""
    spelt = draw(st.sampled_from([key, key.lower(), key.upper()]))
    return f"{spelt}{draw(EQUALS)}{value}"


@st.composite
def node_lines(draw: st.DrawFn) -> str:
    """Draws the lines of nodes n1 to n6, alone or in ranges."""
    cuts = sorted(draw(st.sets(st.integers(1, 5), max_size=3)))
    lines = []
    for first, last in zip([0, *cuts], [*cuts, 6], strict=True):
        name = f"n{first + 1}" if last == first + 1 else f"n[{first + 1}-{last}]"
        parts = [draw(words("NodeName", name))]
        if draw(st.booleans()):
            address = name.replace("n", "10.0.0.", 1)
            parts.append(draw(words("NodeAddr", address)))
        gres = draw(st.sampled_from(["", *GRES]))
        parts += [draw(words("Gres", gres))] if gres else []
        feature = draw(st.sampled_from(["", "ib", "a100,ib"]))
        parts += [draw(words(draw(st.sampled_from(["Feature", "Features"])), feature))] if feature else []
        lines.append(draw(BLANKS).join(parts) + draw(COMMENTS) + draw(ENDS))
    default = draw(
        st.sampled_from(["", "NodeName=DEFAULT Gres=gpu:a100:8\n", "nodename=default Feature=rack1 Gres=gpu:8\n"])
    )
    return default + "".join(lines)


@st.composite
def slurm_confs(draw: st.DrawFn) -> str:
    """Draws a slurm.conf."""
    settings = [
        ("JobSubmitPlugins", ["lua", "berth,lua", "all_partitions"]),
        ("GresTypes", ["gpu", "gpu,mps"]),
        ("SchedulerParameters", ["bf_continue", "bf_interval=2,defer"]),
        ("AccountingStorageTRES", ["gres/gpu", "gres/gpu:a100,gres/gpu"]),
        ("Prolog", ["/etc/slurm/prolog.sh"]),
        ("Licenses", ["solver:1"]),
        ("Include", [""]),
    ]
    text = "# The cluster\nClusterName=c\nSlurmctldHost=ctl\n"
    for key, values in settings:
        if key != "Include" and draw(st.booleans()):
            text += draw(words(key, draw(st.sampled_from(values)))) + draw(COMMENTS) + draw(ENDS)
    text += draw(node_lines())
    text += draw(st.sampled_from(["", 'PartitionName=gpu Nodes=ALL TRESBillingWeights="CPU=1,GRES/gpu:a100=10"']))
    return text


@st.composite
def gres_confs(draw: st.DrawFn) -> str:
    """Draws a gres.conf."""
    lines = st.sampled_from(
        [
            "AutoDetect=nvml\n",
            "Name=gpu Type=a100 File=/dev/nvidia[0-7]\n",
            "NodeName=n[1-6] Name=gpu Type=a100 \\\n File=/dev/nvidia[0-7] # all\n",
            "nodename = n2 name = GPU file=/dev/nvidia0\n",
            "NodeName=n[3-4] AutoDetect=nvml\n",
            "Name=fpga File=/dev/fpga0\n",
            "# a comment\n",
        ]
    )
    return "".join(draw(st.lists(lines, max_size=5))) + draw(st.sampled_from(["", "# no end"]))


def exact(node: str) -> ExactNode:
    """Returns the exact words of a node with two GPUs."""
    gres = "gpu:g0:1,gpu:g1:1,shard:g0:100,shard:g1:100,seat:g0:1,seat:g1:1"
    model = "v100" if node in ("n5", "n6") else "a100"
    return ExactNode(gres, model, tuple(f"NodeName={node} Name=gpu Type=g{k} File=/dev/nvidia{k}" for k in (0, 1)))
