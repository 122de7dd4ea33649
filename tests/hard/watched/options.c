/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of ASan and UBSan for every process of the watched image, without a variable that jobs
 * would inherit.
 *
 * Slurm and Python leave memory behind at their ends, which is not ours to judge: leaks are looked
 * for where the plugin is alone (tests/unit/slurm_plugins/test_plugin_memory.py). Programs of the
 * image have libraries twice (ODR). A crash is left alone: jobs of some tests crash on purpose, and
 * a daemon that did would fail its test.
 */

#define COMMON "halt_on_error=0:log_path=/var/log/watched/found:log_exe_name=1"

const char *__asan_default_options(void)
{
	return COMMON
	    ":detect_leaks=0:detect_odr_violation=0:verify_asan_link_order=0:allocator_may_return_"
	    "null=1"
	    ":handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigfpe=0:handle_sigill=0";
}

const char *__ubsan_default_options(void)
{
	return COMMON ":print_stacktrace=1";
}
