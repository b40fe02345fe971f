"""What tests of `streamer doctor` expect of a finding."""

from streamer.findings import Finding, Verdict

OK, WARNING, PROBLEM = Verdict.OK, Verdict.WARNING, Verdict.PROBLEM


def expect(finding: Finding, verdict: Verdict, found: str, remedy: str = "") -> None:
    assert finding.verdict == verdict, finding
    assert found in finding.found
    assert remedy in finding.remedy
    # A good finding asks for nothing.
    assert verdict != OK or not finding.remedy
    assert "\n" not in finding.found + finding.remedy
