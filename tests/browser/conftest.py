"""A headless Chromium for the tests of the page, as Debian has it, and what it asked for and complained of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from runner.report.page import write_page
from runner.result import Result

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip


class Browser:
    """One window, in which each test opens its own page."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Set the window's size in CSS pixels, and the colours that the system prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, result: Result, fragment: str = "") -> Path:
        """Write the page of a result and open it as a file, without what earlier pages kept."""
        path = self.folder / "page.html"
        write_page(result, path)
        self.driver.get("about:blank")
        self.requests()
        self.complaints()
        self.driver.get(path.as_uri() + fragment)
        return path

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script gives that is run in the page."""
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        """The first element for a CSS selector that is shown."""
        return next(found for found in self.all(selector) if found.is_displayed())

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return " ".join(self.one(selector).text.split())

    def wait(self, script: str) -> None:
        """Wait until a script's expression is true in the page."""
        WebDriverWait(self.driver, 60, 0.05).until(lambda _: self.run(f"return {script}"))

    def requests(self) -> list[str]:
        """The addresses asked for since the last call; the data of the page's own icon is none."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return [url for url in found if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """What stands in the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    binary, server = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or server is None:
        pytest.skip("needs chromium and chromedriver; on Debian: apt-get install chromium chromium-driver")
    folder = tmp_path_factory.mktemp("browser")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(server))
    driver.set_script_timeout(60)
    try:
        yield Browser(driver, folder)
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The browser with a light window of a desktop's size."""
    chromium.look()
    return chromium
