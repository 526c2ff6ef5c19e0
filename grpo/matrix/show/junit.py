"""Verdicts as JUnit XML, which CI systems read."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from grpo.matrix.judge.verdict import Verdict

# XML 1.0 has no place for these, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def verdicts_junit(verdicts: Sequence[Verdict]) -> str:
    """One test case a verdict: "not judged" is skipped, so that it counts as neither passed nor failed."""
    failures = sum(one.outcome == "fail" for one in verdicts)
    skipped = sum(one.outcome == "not judged" for one in verdicts)
    suite = ET.Element(
        "testsuite", name="matrix", tests=str(len(verdicts)), failures=str(failures), skipped=str(skipped), errors="0"
    )
    for verdict in verdicts:
        case = ET.SubElement(suite, "testcase", classname=f"matrix.{verdict.partition}", name=verdict.case)
        properties = ET.SubElement(case, "properties")
        for comparison in verdict.comparisons:
            ET.SubElement(properties, "property", name=comparison.metric, value=repr(comparison.value))
        details = _clean("\n".join(f"rule {one.rule}: {one.message}" for one in verdict.findings))
        if verdict.outcome == "fail":
            kind = verdict.failure or "unknown"
            ET.SubElement(case, "failure", message=_clean(verdict.sentence), type=kind).text = details
        elif verdict.outcome == "not judged":
            ET.SubElement(case, "skipped", message=_clean(verdict.sentence))
        ET.SubElement(case, "system-out").text = _clean(verdict.sentence)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
