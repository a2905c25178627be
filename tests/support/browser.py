"""`Browser`: Chromium, driven by selenium; and a web server in a thread for it. Tests skip without Chromium."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

    from penstock.web.app import WebApp

_WAIT_S = 30.0
WIDE, NARROW = 1440, 360


@cache
def axe_script() -> str | None:
    """Return the rules of accessibility as a script; None where they cannot be fetched."""
    fetched = subprocess.run(
        [Path(__file__).parent / "axe.sh"], capture_output=True, text=True, timeout=300, check=False
    )
    return Path(fetched.stdout.strip()).read_text(encoding="utf-8") if fetched.returncode == 0 else None


def chromium() -> tuple[str, str]:
    """Return the paths of Chromium and its driver; skip the test without them, or without selenium."""
    pytest.importorskip("selenium", reason="the extra 'test' has selenium")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with a driver: apt-get install chromium chromium-driver")
    return program, driver


class Browser:
    """One window of Chromium. `base`: address of the web server."""

    def __init__(self, driver: WebDriver, base: str) -> None:
        self.driver = driver
        self.base = base

    def open(self, path: str) -> None:
        """Open a page below the web server and wait until it is loaded."""
        self.driver.get(self.base + path)

    def show(self, width: int, *, is_dark: bool = False, height: int = 1000) -> None:
        """Set the size of the window, and light or dark colours as the system's."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                     mobile=width < 500)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def command(self, name: str, **arguments: Any) -> Any:
        """Send a command of the developer tools."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def find(self, css: str) -> WebElement:
        """Return an element, after waiting for it."""
        return self._first("css selector", css, css)

    def link(self, text: str) -> WebElement:
        """Return a link by its text, after waiting for it."""
        return self._first("link text", text, text)

    def field(self, label: str) -> WebElement:
        """Return the input with a label that begins with a text."""
        path = f"//label[starts-with(normalize-space(.), {label!r})]//*[self::input or self::select]"
        return self._first("xpath", path, label)

    def _first(self, by: str, value: str, what: str) -> WebElement:
        found: list[WebElement] = self.until(lambda: self.driver.find_elements(by, value), what)
        return found[0]

    def press(self, text: str) -> None:
        """Press the first visible button with a text."""
        path = f"//main//button[normalize-space(.)={text!r}]"
        self.until(
            lambda: next((each for each in self.driver.find_elements("xpath", path) if each.is_displayed()), None), text
        ).click()

    def until(self, condition: Any, what: str) -> Any:
        """Wait until a condition returns something true, and return it."""
        from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

        ends = time.monotonic() + _WAIT_S
        while True:
            try:
                found = condition()
            except (NoSuchElementException, StaleElementReferenceException):
                found = None  # The page was replaced while it was read.
            if found:
                return found
            assert time.monotonic() < ends, f"{what} is not in {self.driver.current_url}: {self.text[:2000]}"
            time.sleep(0.05)

    @property
    def text(self) -> str:
        """The visible text of the page."""
        return str(self.driver.find_element("css selector", "body").text)

    @property
    def title(self) -> str:
        """The heading of the page."""
        return str(self.find("h1").text)

    def is_wider_than_window(self) -> bool:
        """Return whether the page scrolls sideways as a whole."""
        return bool(self.driver.execute_script(
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        ))  # fmt: skip

    def problems(self) -> list[str]:
        """Return the messages of the browser since the last call, as of refused scripts, without those of statuses."""
        entries = self.driver.execute("getLog", {"type": "browser"})["value"]
        return [
            entry["message"] for entry in entries
            if "Failed to load resource" not in entry["message"]
        ]  # fmt: skip

    def violations(self, *, only: str = "") -> list[str]:
        """Return what is not accessible, with the elements; nothing where axe cannot be fetched. `only`: one rule."""
        script = axe_script()
        if script is None:
            return []
        # As the developer tools would: the policy of the page does not concern it.
        self.command("Runtime.evaluate", expression=script)
        found = self.driver.execute_async_script(
            "const [only, done] = arguments; const options = only ? { runOnly: [only] } : {};"
            "axe.run(document, options).then(function (found) { done(found.violations); });",
            only,
        )
        return [f"{each['id']}: {[node['html'][:200] for node in each['nodes']][:3]}" for each in found]


@contextmanager
def opened_browser(base: str, *, has_script: bool = True) -> Iterator[Browser]:
    """Start Chromium without a window. `has_script`: whether pages may run JavaScript."""
    program, path = chromium()
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not has_script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = Chrome(options=options, service=Service(path))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    try:
        browser = Browser(driver, base)
        browser.show(WIDE)
        yield browser
    finally:
        driver.quit()


@contextmanager
def served(app: WebApp) -> Iterator[str]:
    """Serve a web application in a thread; give its address."""
    import uvicorn

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
