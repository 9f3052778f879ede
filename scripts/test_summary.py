#!/usr/bin/env python3
"""Summarizes the XML files of test processes in a folder: counts, failed tests, skipped tests and slowest tests.

Usage: test_summary.py FOLDER [--slowest N] [--table FILE]

Reads the XML files of GoogleTest and pytest. If FOLDER has the results of ctest (ctest.junit), processes that failed
without a failed test (crashes, timeouts) are listed as failed, too. --table writes one line per test (seconds,
process, test) in descending order of time. The last line is "N passed, N failed, N skipped".
"""

import argparse
import collections
import pathlib
import xml.etree.ElementTree as ElementTree

Case = collections.namedtuple("Case", "process name seconds outcome reason")


def read_case(process, case):
    """Converts a <testcase> element to a Case."""
    skipped = case.find("skipped")
    failures = case.findall("failure") + case.findall("error")
    name = f"{case.get('classname')}.{case.get('name')}"
    seconds = float(case.get("time") or 0)
    if failures:
        return Case(process, name, seconds, "failed", failures[0].get("message") or "")
    if skipped is not None:
        return Case(process, name, seconds, "skipped", skipped.get("message") or skipped.text or "no reason given")
    return Case(process, name, seconds, "passed", "")


def read_cases(folder):
    """Returns the tests of all XML files in `folder`."""
    cases = []
    for path in sorted(pathlib.Path(folder).glob("*.xml")):
        root = ElementTree.parse(path).getroot()
        cases += [read_case(path.stem, case) for case in root.iter("testcase")]
    return cases


def failed_processes(folder, cases):
    """Returns a Case for every process that ctest reports as failed although none of its tests has failed."""
    path = pathlib.Path(folder) / "ctest.junit"
    if not path.exists():
        return []
    known = {case.process for case in cases if case.outcome == "failed"}
    return [
        Case(entry.get("name"), "the process crashed, timed out or wrote no results", 0, "failed", "")
        for entry in ElementTree.parse(path).getroot().iter("testcase")
        if entry.get("status") == "fail" and entry.get("name") not in known
    ]


def print_skipped(cases):
    """Prints the skipped tests, grouped by reason."""
    reasons = collections.defaultdict(list)
    for case in cases:
        if case.outcome == "skipped":
            lines = [line for line in case.reason.splitlines() if line.strip()]
            # The first line of a GoogleTest message is the source location. Use the last line.
            reason = lines[-1] if lines else "no reason given"
            reasons[reason.strip()].append(case.name)
    if reasons:
        print(f"\nSkipped ({sum(map(len, reasons.values()))}):")
    for reason, names in sorted(reasons.items()):
        print(f"  {reason}")
        print(f"    {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--slowest", type=int, default=10)
    parser.add_argument("--table")
    arguments = parser.parse_args()
    cases = read_cases(arguments.folder)
    cases += failed_processes(arguments.folder, cases)
    by_time = sorted(cases, key=lambda case: -case.seconds)
    if arguments.table:
        lines = [f"{case.seconds:.3f}\t{case.process}\t{case.name}\n" for case in by_time]
        pathlib.Path(arguments.table).write_text("".join(lines))
    print_skipped(cases)
    print(f"\nSlowest of {len(cases)} tests ({sum(case.seconds for case in cases):.0f} s in all):")
    for case in by_time[: arguments.slowest]:
        print(f"  {case.seconds:7.1f} s  {case.process}: {case.name}")
    failed = [case for case in cases if case.outcome == "failed"]
    if failed:
        print(f"\nFailed ({len(failed)}):")
    for case in failed:
        print(f"  {case.process}: {case.name}")
    counts = collections.Counter(case.outcome for case in cases)
    print(f"\n{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")


if __name__ == "__main__":
    main()
