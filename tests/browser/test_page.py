"""The page in a browser: it renders, filters, draws, works by keyboard and on a phone, and asks for nothing."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.runner.report.factory import CAUSE, filled_with, result
from tests.runner.report.page_factory import collective, page_result, trained

from .conftest import Browser

pytestmark = [pytest.mark.needs_program("chromium"), pytest.mark.needs_program("chromedriver"), pytest.mark.slow]

CHART = ".chart"
DRAWN = "document.querySelector('.chart svg') !== null"


def shown_cases(browser: Browser) -> list[str]:
    return [name.text for name in browser.all("tr.case .name") if name.is_displayed()]


def press(browser: Browser, *keys: str) -> None:
    for key in keys:
        browser.one(CHART).send_keys(key)


def draw(browser: Browser, **more: Any) -> None:
    """Open a page with one case, whose timeline is shown."""
    browser.open(result(trained(**more)))
    browser.wait(DRAWN)


def test_it_renders_without_a_complaint_or_a_request(browser: Browser) -> None:
    path = browser.open(page_result())
    browser.wait(DRAWN)
    assert browser.text("h1") == "✕ fail"
    assert browser.one(".chart svg").size["width"] > 800
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []


def test_the_policy_holds(browser: Browser) -> None:
    """What the page does not ask for could not be had either; and no script but its own runs."""
    browser.open(page_result())
    browser.run(
        "const image = new Image(); image.src = 'https://outside.example/x.png'; document.body.append(image);"
        "const script = document.createElement('script'); script.textContent = 'window.bad = 1';"
        "document.body.append(script);"
    )
    refused = " ".join(browser.complaints())
    assert "img-src" in refused and "script-src" in refused
    assert browser.run("return window.bad") is None


def test_hostile_names_are_harmless(browser: Browser) -> None:
    text = "\"'></script><script>window.bad=1</script><img src=x onerror=window.bad=1>\u2028\u202e]]>${window.bad=1}"
    found = filled_with(text)
    one = collective(kernel=text, why=text, group=text, dtype=text, algorithm=text, symmetric=False)
    cases = [msgspec.structs.replace(case, collectives=[one], axes={"pool": text}) for case in found.cases]
    path = browser.open(msgspec.structs.replace(found, cases=cases))
    browser.wait(DRAWN)
    press(browser, Keys.ARROW_RIGHT)
    assert "onerror=window.bad=1" in browser.text(".told")
    Select(browser.one("#by-pool")).select_by_index(1)
    assert len(shown_cases(browser)) == len(cases)
    assert browser.run("return window.bad") is None
    assert browser.all("img") == [] and browser.requests() == [path.as_uri()] and browser.complaints() == []


def test_filters(browser: Browser) -> None:
    browser.open(page_result())
    assert browser.text("#count") == "6 cases"
    Select(browser.one("#by-outcome")).select_by_visible_text("known")
    assert shown_cases(browser) == ["all_reduce/step"] and browser.text("#count") == "1 of 6 cases"
    Select(browser.one("#by-phase")).select_by_visible_text("forward")
    assert shown_cases(browser) == []
    browser.one("#all").click()
    assert len(shown_cases(browser)) == 6
    Select(browser.one("#by-phase")).select_by_visible_text("backward")
    heads = [head.text for head in browser.all("table.cases > thead th") if head.is_displayed()]
    assert heads == ["case", "backward"]
    assert all("forward" not in cell.text for cell in browser.all("tr.case td") if cell.is_displayed())
    Select(browser.one("#by-phase")).select_by_visible_text("all")
    Select(browser.one("#by-pool")).select_by_visible_text("static")
    assert shown_cases(browser) == ["all_reduce/static"]
    Select(browser.one("#by-pool")).select_by_visible_text("all")
    browser.one("#by-name").send_keys("FSDP")
    assert shown_cases(browser) == ["train/fsdp2"]


def test_a_filtered_case_takes_its_details_along(browser: Browser) -> None:
    browser.open(page_result())
    browser.wait(DRAWN)
    Select(browser.one("#by-outcome")).select_by_visible_text("pass")
    assert "train/fsdp2" in shown_cases(browser)
    Select(browser.one("#by-outcome")).select_by_visible_text("error")
    assert shown_cases(browser) == ["all_reduce/crash"]
    assert not any(row.is_displayed() for row in browser.all("tr.more"))


def test_a_case_opens_by_keyboard_and_by_its_address(browser: Browser) -> None:
    browser.open(page_result())
    button = browser.all("tr.case button")[4]
    button.send_keys(Keys.ENTER)
    assert button.get_attribute("aria-expanded") == "true"
    assert "rank 1 was killed by SIGSEGV" in browser.text("#more-4")
    button.send_keys(Keys.SPACE)
    assert button.get_attribute("aria-expanded") == "false" and not browser.all("#more-4")[0].is_displayed()
    browser.open(page_result(), "#case-1")
    assert browser.all("#more-1")[0].is_displayed()


def test_the_whole_page_is_reached_by_tab(browser: Browser) -> None:
    browser.open(page_result())
    browser.wait(DRAWN)
    reached = []
    for _ in range(40):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        reached.append(browser.run("const e = document.activeElement; return e.id || e.className || e.tagName"))
    order = [reached.index(name) for name in ("skip", "theme", "by-outcome", "by-phase", "by-pool", "by-name", "chart")]
    assert order == sorted(order)


def test_the_timeline_is_walked_by_keyboard(browser: Browser) -> None:
    draw(browser)
    press(browser, Keys.ARROW_RIGHT)
    assert browser.text(".told b") == "all_gather in forward on rank 0: symmetric"
    press(browser, Keys.END)
    assert browser.text(".told b") == "reduce_scatter in backward on rank 0: fell back"
    press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert "on rank 1" in browser.text(".told b")
    press(browser, Keys.HOME)
    first = browser.text(".told")
    press(browser, Keys.ARROW_RIGHT)
    assert browser.text(".told") != first
    press(browser, Keys.ARROW_LEFT)
    assert browser.text(".told") == first


def test_a_fallback_tells_kernel_bytes_and_cause(browser: Browser) -> None:
    draw(browser)
    for _ in range(12):
        press(browser, Keys.ARROW_RIGHT)
        if "in backward" in browser.text(".told b") and "fell back" in browser.text(".told b"):
            break
    told = browser.text(".told")
    assert "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" in told and "8 MiB bfloat16" in told
    assert f"Why: The buffer lies outside the pool. Do this: {CAUSE.mend}." in told


def test_pointing_at_a_collective_tells_of_it(browser: Browser) -> None:
    draw(browser)
    chart = browser.one(CHART)
    x, y = browser.run(
        "document.querySelector('.chart').scrollIntoView({ block: 'center' });"
        "const box = document.querySelector('.chart').getBoundingClientRect();"
        "const one = document.querySelector('.chart rect.s-fallback').getBoundingClientRect();"
        "return [one.x + one.width / 2 - box.x - box.width / 2, one.y + one.height / 2 - box.y - box.height / 2]"
    )
    ActionChains(browser.driver).move_to_element_with_offset(chart, round(x), round(y)).perform()
    assert browser.text(".told b").endswith("fell back")
    assert browser.one(".chart .picked").get_attribute("visibility") == "visible"


def test_zoom_steps_ranks_and_lanes(browser: Browser) -> None:
    draw(browser)
    ticks = browser.run("return document.querySelector('.chart svg').textContent")
    browser.one("button[aria-label='Zoom in']").click()
    assert browser.run("return document.querySelector('.chart svg').textContent") != ticks
    press(browser, "0")
    assert browser.run("return document.querySelector('.chart svg').textContent") == ticks
    assert not browser.one("button[aria-label='Whole step']").is_enabled()
    lanes = "return [...document.querySelectorAll('.chart text > title')].map((title) => title.textContent)"
    assert browser.run(lanes) == ["dp (2)", "tp (2)"] * 2
    step, rank, by = (Select(found) for found in browser.all(".tools select"))
    by.select_by_visible_text("rank and kind")
    assert browser.run(lanes) == ["all_gather", "broadcast", "reduce_scatter"] * 2
    rank.select_by_visible_text("rank 1")
    assert browser.run(lanes) == ["all_gather", "broadcast", "reduce_scatter"]
    step.select_by_visible_text("step 4")
    assert browser.run(lanes) == ["all_gather", "broadcast", "reduce_scatter"] * 2
    assert browser.complaints() == []


def test_nothing_is_told_by_colour_alone(browser: Browser) -> None:
    draw(browser)
    looks = browser.run(
        "return [...document.querySelectorAll('.chart rect[fill]')].map((rect) => "
        "[rect.getAttribute('class'), rect.getAttribute('fill'), rect.getAttribute('height')])"
    )
    heights = {
        state: {height for look, _, height in looks if f"s-{state}" in look} for state in ("symmetric", "fallback")
    }
    assert heights == {"symmetric": {"16"}, "fallback": {"11"}}
    patterns = browser.run(
        "return [...document.querySelectorAll('pattern[id^=m-]')].map((one) => [one.id, one.innerHTML])"
    )
    by_name = dict(patterns)
    assert by_name["m-nccl-symmetric"] != by_name["m-nccl"]
    legend = browser.text(".timeline .legend")
    assert "S: NCCL symmetric kernel" in legend and "G: NCCL general kernel, fell back" in legend
    words = browser.run("return [...document.querySelectorAll('.chart text')].map((text) => text.textContent)")
    assert {"forward", "recompute", "backward", "O"} <= set(words)
    assert all(re.match(r"\W \w+", badge.text) for badge in browser.all(".badge") if badge.is_displayed())


def luminance(color: str) -> float:
    found = [float(part) / 255 for part in re.findall(r"[\d.]+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in found]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


COLORS = """
const seen = [];
for (const element of document.querySelectorAll('body *')) {
  if (!element.checkVisibility() || element.closest('svg')) continue;
  if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
  let behind = element;
  while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
  if (!element.disabled) seen.push([element.className || element.tagName, getComputedStyle(element).color,
    getComputedStyle(behind ?? document.body).backgroundColor]);
}
return seen"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_enough_contrast_in_both_themes(browser: Browser, dark: bool) -> None:
    browser.look(dark=dark)
    browser.open(page_result())
    browser.wait(DRAWN)
    seen = browser.run(COLORS)
    assert len(seen) > 60
    weak = set()
    for name, ink, paper in seen:
        light, deep = sorted((luminance(ink), luminance(paper)), reverse=True)
        if (light + 0.05) / (deep + 0.05) < 4.5:
            weak.add((name, ink, paper))
    assert weak == set()


def test_the_theme_follows_the_system_and_the_switch(browser: Browser) -> None:
    def paper() -> float:
        return luminance(browser.run("return getComputedStyle(document.body).backgroundColor"))

    browser.open(page_result())
    assert paper() > 0.8
    browser.look(dark=True)
    assert paper() < 0.05
    Select(browser.one("#theme")).select_by_visible_text("light")
    assert paper() > 0.8
    browser.driver.refresh()
    assert paper() > 0.8 and browser.one("#theme").get_attribute("value") == "light"
    Select(browser.one("#theme")).select_by_visible_text("system")
    assert paper() < 0.05


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser) -> None:
    browser.look(width=360, height=740)
    browser.open(page_result())
    browser.wait(DRAWN)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert "forward" in browser.text("tr.case td") and browser.text("tr.case .badge").endswith("pass")
    wide = browser.run(
        "return [...document.querySelectorAll('main *')].filter((one) => one.checkVisibility() "
        "&& !one.closest('.wide, pre, svg') && one.getBoundingClientRect().right > 361)"
        ".map((one) => one.className || one.tagName)"
    )
    assert wide == []


def test_many_collectives_open_within_a_second(browser: Browser) -> None:
    many = result(trained(8, 2_000))
    loads: list[float] = []
    zooms: list[float] = []
    # The best of a few: other programs may have the machine for a while.
    while len(loads) < 10 and not (loads and min(loads) < 1000 and min(zooms) < 500):
        browser.open(many)
        browser.wait(DRAWN)
        loads.append(browser.run("return performance.now()"))
        zooms.append(
            browser.run(
                "const began = performance.now(); document.querySelector('.zoom button:nth-child(4)').click();"
                "document.body.getBoundingClientRect(); return performance.now() - began"
            )
        )
    assert min(loads) < 1000 and min(zooms) < 500
    assert browser.run("return document.querySelectorAll('.chart svg *').length") < 8_000


def test_what_is_too_close_is_drawn_as_one_and_told(browser: Browser) -> None:
    draw(browser, ranks=2, number=4_000)
    assert "too close to be told apart at this width are drawn as" in browser.text(".timeline")
    press(browser, Keys.ARROW_RIGHT, Keys.END)
    assert re.search(r"The worst of \d+ that are drawn as one here", browser.text(".told"))
    for _ in range(8):
        press(browser, "+")
    assert "too close" not in browser.text(".timeline") and "The worst of" not in browser.text(".told")


def test_many_lanes_are_shown_when_asked_for(browser: Browser) -> None:
    draw(browser, ranks=40, number=4)
    lanes = "return document.querySelectorAll('.chart .lane').length"
    assert browser.run(lanes) == 48
    next(button for button in browser.all(".timeline button") if button.text == "Show 32 more lanes").click()
    assert browser.run(lanes) == 80


def test_without_scripts_everything_but_the_timeline_is_there(browser: Browser) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(page_result())
        assert len(shown_cases(browser)) == 6
        assert all(row.is_displayed() for row in browser.all("tr.more"))
        assert not browser.all("form.filters")[0].is_displayed()
        assert "The timeline is drawn by a script, which does not run here." in browser.one("#more-5").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_page_without_cases_has_no_errors(browser: Browser) -> None:
    browser.open(result())
    assert browser.text("h1") == "✓ pass" and browser.complaints() == []
    browser.open(result(*[trained(number=0)]))
    assert "there is no timeline" in browser.text("#more-0") and browser.complaints() == []
