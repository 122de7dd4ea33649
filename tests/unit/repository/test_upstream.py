# SPDX-License-Identifier: Apache-2.0
"""The watch on Slurm's sources: what it names, and what it leaves unnamed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.upstream.__main__ import main
from tests.upstream.declarations import aliases, constants, functions, literals, plain, structures
from tests.upstream.trees import TreeError, read_tree

HEADER = """
#define SHOW_ALL SLURM_BIT(0)
typedef struct job_descriptor {	/* a submission */
	char *req_nodes; /* "host list; of
	* nodes" */
	uint32_t min_nodes, max_nodes;
	uint16_t requeue;
	char *not_ours;
} job_desc_msg_t;
extern int slurm_update_job2(job_desc_msg_t *job_msg, job_array_resp_msg_t **resp);
extern void slurm_perror(const char *msg);
"""
FILES = {
    "META": "  Version:	26.05.0\n  API_CURRENT:	45\n",
    "slurm/slurm.h": HEADER,
    "slurm/spank.h": "typedef int (spank_f) (spank_t spank, int ac, char *argv[]);\nextern spank_f slurm_spank_init;\n",
    "src/interfaces/job_submit.c": """
typedef struct slurm_submit_ops {
	int (*submit)(struct job_descriptor *job_desc, uint32_t uid, char **err_msg);
} slurm_submit_ops_t;
static const char *syms[] = { "job_submit" };
""",
    "src/common/xmalloc.h": "void slurm_xfree(void **);\n",
    "src/squeue/opts.c": '{"tres-per-node", 0, _print_job_tres_per_node},\n',
    "src/scontrol/update_job.c": 'if (!xstrncasecmp(tag, "ReqNodeList", 8))\n',
    "src/api/node_info.c": 'xstrfmtcat(out, "NodeName=%s CPUAlloc=%u " "Gres=%s", a, b, c);\n',
    "src/common/slurm_opt.c": 'xfmt_tres(&job_desc->tres_per_job, "gres/gpu", opt->gpus);\n',
    "src/plugins/data_parser/v0.0.45/parsers.c": """
	addfa(JOB_STATE, uint32_t),
static const parser_t PARSER_ARRAY(JOB_INFO)[] = {
	add_parse(JOB_STATE, job_state, "job_state", "Current state"),
	add_parse(STRING, comment, "not_read", "A word"),
};
""",
}


@pytest.fixture
def tested(tmp_path: Path) -> Path:
    return tree(tmp_path / "tested")


def tree(folder: Path, *changed: tuple[str, str, str]) -> Path:
    """Slurm's sources in small, with some words replaced."""
    texts = dict(FILES)
    for path, old, new in changed:
        assert old in texts[path]
        texts[path] = texts[path].replace(old, new)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("slurm/slurm.h", "char *req_nodes;", "", "field job_desc_msg_t.req_nodes: gone"),
        ("slurm/slurm.h", "uint16_t requeue;", "char *requeue;", "requeue: uint16_t became char *"),
        ("slurm/slurm.h", "max_nodes;", "most_nodes;", "field job_desc_msg_t.max_nodes: gone"),
        ("slurm/slurm.h", "**resp)", "**resp, bool all)", "function slurm_update_job2: int (job_desc_msg_t *,"),
        ("slurm/slurm.h", "#define SHOW_ALL", "#define SHOW_EVERYTHING", "constant SHOW_ALL: gone"),
        ("slurm/spank.h", "int ac", "size_t ac", "plugin spank: spank_t spank, int ac"),
        ("src/interfaces/job_submit.c", '"job_submit"', '"job_submit_p"', "plugin job_submit: job_submit became"),
        (
            "src/interfaces/job_submit.c",
            "uint32_t uid",
            "uid_t uid",
            "plugin job_submit.submit: int (*)(job_desc_msg_t",
        ),
        ("src/interfaces/job_submit.c", "} slurm_s", "int (*hold)(void);\n} slurm_s", "plugin job_submit.hold: new"),
        ("src/common/xmalloc.h", "void **", "void **, char *", "function slurm_xfree: void (void **) became"),
        ("src/squeue/opts.c", "tres-per-node", "tres-of-node", "squeue -O tres-per-node: gone"),
        ("src/scontrol/update_job.c", "ReqNodeList", "NodesWanted", "scontrol update ReqNodeList: gone"),
        ("src/api/node_info.c", "CPUAlloc=%u ", "", "scontrol show CPUAlloc: gone"),
        ("src/api/node_info.c", 'CPUAlloc=%u " "Gres=%s', 'Gres=%s " "CPUAlloc=%u', "Gres CPUAlloc"),
        ("src/common/slurm_opt.c", "gres/gpu", "gres:gpu", "begins with: gres/ became gres:"),
        ("src/plugins/data_parser/v0.0.45/parsers.c", "addfa(", "addps(", "JSON job_info job_state: list of JOB_STATE"),
    ],
)
def test_names_what_berth_uses_and_slurm_has_changed(
    tested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, old: str, new: str, said: str
) -> None:
    assert main([str(tree(tmp_path / "new", (path, old, new))), str(tested)]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("slurm/slurm.h", "char *not_ours;", ""),
        ("slurm/slurm.h", "char *req_nodes;", "char *new_one;\nchar *req_nodes;"),
        ("slurm/slurm.h", "job_array_resp_msg_t **resp", "job_array_resp_msg_t **answers"),
        ("slurm/slurm.h", "extern void slurm_perror(const char *msg);", ""),
        ("slurm/slurm.h", "SLURM_BIT(0)", "SLURM_BIT(7)"),
        ("src/interfaces/job_submit.c", "struct job_descriptor *", "job_desc_msg_t *"),
        ("src/api/node_info.c", "CPUAlloc=%u ", "CPUAlloc=%u Room=%s "),
        ("src/plugins/data_parser/v0.0.45/parsers.c", '"not_read"', '"never_read"'),
        ("META", "26.05.0", "26.11.0"),
    ],
)
def test_leaves_the_rest_unnamed(
    tested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, old: str, new: str
) -> None:
    assert main([str(tree(tmp_path / "new", (path, old, new))), str(tested)]) == 0
    assert capsys.readouterr().out.endswith("0 changes of what Berth uses\n")


def test_of_the_public_headers_all_is_named_on_request(
    tested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tree(tmp_path / "new", ("slurm/slurm.h", "extern void slurm_perror(const char *msg);", ""))

    assert main([str(new), str(tested), "--public"]) == 1
    assert "function slurm_perror: gone" in capsys.readouterr().out


def test_reads_a_commit_as_it_reads_a_folder(tested: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
        subprocess.run(["git", "-C", str(tested), *who, *words], check=True, capture_output=True)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "a release")

    assert read_tree(f"{tested}@HEAD").texts == read_tree(str(tested)).texts


def test_tells_what_is_no_source_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path)]) == 2
    assert "has no slurm/slurm.h" in capsys.readouterr().err
    with pytest.raises(TreeError, match="has no v1"):
        read_tree(f"{tmp_path}@v1")


def test_reads_declarations_as_a_compiler_would() -> None:
    text = plain(HEADER)

    assert structures(text)["job_descriptor"] == structures(text)["job_desc_msg_t"]
    assert structures(text)["job_desc_msg_t"]["max_nodes"] == "uint32_t"
    assert functions(text)["slurm_perror"] == "void (char *)"
    assert aliases(text) == {"job_descriptor": "job_desc_msg_t"}
    assert constants("enum job_states {\n\tJOB_PENDING,\n\tJOB_END = 9\n};") == {"JOB_PENDING", "JOB_END"}
    assert literals('say("a" /* "b" */ "c\\"" PRIu32 "d")') == ['ac\\"d']
