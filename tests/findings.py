"""What tests of `streamer doctor` expect of a finding."""

from streamer.findings import Finding, Severity

OK, WARNING, PROBLEM = Severity.OK, Severity.WARNING, Severity.PROBLEM


def expect(finding: Finding, severity: Severity, found: str, remedy: str = "") -> None:
    assert finding.severity == severity, finding
    assert found in finding.found
    assert remedy in finding.remedy
    # A good finding asks for nothing.
    assert severity != OK or not finding.remedy
    assert "\n" not in finding.found + finding.remedy
