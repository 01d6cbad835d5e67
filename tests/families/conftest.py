"""Ends a session with how far the families are apart, case by case."""


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    ratios = {
        report.nodeid.partition("[")[2].rstrip("]"): dict(report.user_properties)["norm_ratio"]
        for report in reports
        if getattr(report, "when", "") == "call" and "norm_ratio" in dict(report.user_properties)
    }
    if ratios:
        terminalreporter.section("norm of (two dots - one dot) / norm of one dot")
        for case, ratio in ratios.items():
            terminalreporter.write_line(f"{ratio:.2e}  {case}")
