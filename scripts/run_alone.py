#!/usr/bin/env python3
"""Runs each GoogleTest test that a filter selects in a separate process.

Usage: run_alone.py BINARY FILTER RESULTS.xml

This is for tests that change the state of their process (signal handlers, memory limits, threads, environment
variables). The script prints the output of failed tests, and writes one XML file in GoogleTest's format. The exit code
is 1 if a test failed.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree


def list_tests(binary, selection):
    """Returns the full names of the tests that the filter selects."""
    listing = subprocess.run(
        [binary, "--gtest_list_tests", f"--gtest_filter={selection}"], check=True, capture_output=True, text=True
    ).stdout
    names, suite = [], ""
    for line in listing.splitlines():
        line = line.split("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + line.strip())
        elif line.endswith("."):
            suite = line
    return names


def run_test(binary, name, results):
    """Runs one test and adds its XML to `results`. Returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "one.xml")
        arguments = [binary, "--gtest_brief=1", f"--gtest_filter={name}", f"--gtest_output=xml:{path}"]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        if os.path.exists(path):
            results.extend(ElementTree.parse(path).getroot())
        else:
            suite = ElementTree.SubElement(results, "testsuite", name=name.split(".")[0])
            case = ElementTree.SubElement(suite, "testcase", name=name.split(".")[1], classname=name.split(".")[0])
            ElementTree.SubElement(case, "failure", message=f"the process ended with status {done.returncode}")
    if done.returncode != 0:
        print(f"{name}: exit status {done.returncode}\n{done.stdout}", flush=True)
    return done.returncode


def main():
    binary, selection, path = sys.argv[1:]
    results = ElementTree.Element("testsuites")
    names = list_tests(binary, selection)
    if not names:
        sys.exit(f"run_alone: {binary} has no test that matches {selection}")
    failed = [name for name in names if run_test(binary, name, results) != 0]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    ElementTree.ElementTree(results).write(path)
    print(f"{len(names)} tests, each in a separate process, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
