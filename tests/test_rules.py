"""The alert rules for Prometheus: figures that exist, and the table's advice."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from watchdog.core.agent import Verdict
from watchdog.core.decision import Veto
from watchdog.core.kill import Reason
from watchdog.telemetry.metrics import FIGURES, PREFIX

RULES = Path(__file__).parent.parent / "config" / "agent-watchdog.rules.yml"
ALERT = re.compile(
    r"""      - alert: (?P<name>AgentWatchdog\w+)
        expr: (?P<expr>[^\n]+)
(?:        for: \d+[mh]
)?        labels: \{severity: (?:critical|warning|info)\}
        annotations:
          summary: "(?P<summary>[^\n]+)"
          action: "(?P<action>[^\n]+)"
"""
)


def alerts() -> list[re.Match[str]]:
    found = list(ALERT.finditer(RULES.read_text()))
    assert len(found) == RULES.read_text().count("alert:"), "an alert is not of the common form"
    return found


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["name"])
def test_an_alert_names_a_figure_that_exists_and_what_to_do(alert: re.Match[str]) -> None:
    """A rule on a name that nobody exports is silent for ever."""
    figures = [name.removesuffix("_bucket") for name in re.findall(PREFIX + r"(\w+)", alert["expr"])]
    if alert["name"] == "AgentWatchdogDown":
        assert alert["expr"] == 'up{job="agent-watchdog"} == 0'
        return
    (figure,) = figures
    assert alert["action"].replace('\\"', '"') == FIGURES[figure].act
    labels = set(re.findall(r'(\w+)(?:=|!~|=~)"', alert["expr"]))
    assert labels <= set(FIGURES[figure].labels)
    used = set(re.findall(r"\$labels\.(\w+)", alert["summary"]))
    assert used <= {"instance", *FIGURES[figure].labels}


def test_every_word_of_an_expression_is_one_that_is_exported() -> None:
    """Verdicts, reasons and kinds of hold are what the code says."""
    words = {str(word) for word in [*Verdict, *Reason, *Veto]}
    for alert in alerts():
        for value in re.findall(r'\w+(?:=|!~|=~)"([^"]+)"', alert["expr"].replace('job="agent-watchdog"', "")):
            assert set(value.split("|")) <= words, value


def test_what_the_table_advises_has_an_alert() -> None:
    """Whatever needs somebody wakes somebody; a refusal, of permission or beyond a share, does not."""
    named = {
        name.removesuffix("_bucket") for alert in alerts() for name in re.findall(PREFIX + r"(\w+)", alert["expr"])
    }
    assert {name for name, figure in FIGURES.items() if figure.act} - named == {"denied_total", "refused_total"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not here")
def test_prometheus_takes_the_rules() -> None:
    """Its own checker."""
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
