"""JupyterLab for real: two notebooks open in headless Chromium, run to the end, a slider moves its figure.

Needs the Debian packages chromium and chromium-driver and the Python package selenium; without them
the tests are skipped and say so.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import pytest
from conftest import PATIENCE
from processes import free_port
from test_teaching_notebooks import IN_JUPYTERLAB, check_figures, parameters_cell

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no chromium with chromedriver on this machine: apt install chromium chromium-driver",
    ),
    # selenium and its sockets, closed by the garbage collector, are not ours
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).parents[2]
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1400,1200",
]  # fmt: skip
PICTURE = ".jupyter-widgets img"
ERROR = '[data-mime-type="application/vnd.jupyter.error"]'
PROMPT, DIALOG, STATUS = ".jp-InputPrompt", ".jp-Dialog", "#jp-main-statusbar"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A JupyterLab on small copies of the notebooks; yields its address, token and folder."""
    folder = tmp_path_factory.mktemp("lab")
    for name, small in IN_JUPYTERLAB.items():
        source = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        values = small | {"figures_dir": str(folder / "figures")}
        values |= {"manifest": str(folder / f"{name}.json")}
        # after the defaults, so that these are the ones that count
        parameters_cell(source).source += "".join(f"\n{key} = {value!r}" for key, value in values.items())
        for cell in source.cells:
            if cell.cell_type == "code":
                cell.update(execution_count=None, outputs=[])
        nbformat.write(source, folder / f"{name}.ipynb")
    for path, choice in (
        # every cell in the page at once, also those outside the window
        ("notebook-extension/tracker", '{"windowingMode": "none"}'),
        ("apputils-extension/notification", '{"fetchNews": "false"}'),
    ):
        file = folder / "settings" / "@jupyterlab" / f"{path}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(choice, encoding="utf-8")
    port, token = free_port(), secrets.token_hex(8)
    settings = {"JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
    settings |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "PYTHONPATH": str(ROOT)}
    settings |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
        "--ip=127.0.0.1", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=None", "--LabApp.expose_app_in_browser=True",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    with (folder / "lab.log").open("w") as log:
        lab = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | settings, cwd=folder)
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(lambda: answers(f"{address}/api/status?token={token}"), "JupyterLab does not answer")
            yield address, token, folder
        finally:
            lab.terminate()
            lab.wait(PATIENCE)


@pytest.fixture
def browser(tmp_path):
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is missing: pip install selenium")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.parametrize("name", IN_JUPYTERLAB)
def test_opens_runs_and_a_slider_moves_its_figure(name, server, browser):
    address, token, folder = server
    browser.get(f"{address}/lab/tree/{name}.ipynb?token={token}&reset")
    wait_for(lambda: len(browser.find_elements("css selector", ".jp-CodeCell")) > 5, "it does not open")
    # whatever asks something at the first start
    browser.execute_script("document.querySelectorAll('.jp-Dialog .jp-mod-reject').forEach(b => b.click())")
    ready = ".jp-NotebookPanel [data-status='idle']"
    wait_for(lambda: browser.find_elements("css selector", ready), "the kernel does not become ready")

    def texts(selector):
        return [node.get_property("textContent") for node in browser.find_elements("css selector", selector)]

    for _ in range(3):  # the command does nothing while JupyterLab has not made the notebook the current one
        browser.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        with suppress(AssertionError):
            wait_for(lambda: set("".join(texts(PROMPT))) & set("*123456789"), "no cell starts", 20)
            break
    ended = (folder / f"{name}.json").is_file  # the last cell's work
    with state_on_failure(lambda: {selector: texts(selector) for selector in (PROMPT, DIALOG, STATUS)}):
        wait_for(lambda: ended() or texts(ERROR), "the notebook does not run to its end")
    assert not texts(ERROR)
    check_figures(folder / f"{name}.json")
    picture = find_in_notebook(browser, PICTURE)
    before = picture.get_attribute("src")
    handle = find_in_notebook(browser, ".jupyter-widgets .noUi-handle")
    from selenium.webdriver.common.keys import Keys

    for _ in range(4):
        handle.send_keys(Keys.ARROW_RIGHT)
    wait_for(lambda: picture.get_attribute("src") != before, "the slider does not move the figure")
    assert int(picture.get_property("naturalWidth")) > 300


def find_in_notebook(browser, selector):
    """The first such element, scrolled into view."""
    found = wait_for(lambda: browser.find_elements("css selector", selector), f"no {selector}")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    time.sleep(0.5)
    return found


@contextmanager
def state_on_failure(state):
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}: {state()}") from None


def answers(address):
    with suppress(OSError), urllib.request.urlopen(address, timeout=5) as response:
        return "started" in json.load(response)


def wait_for(condition, complaint, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{complaint} within {seconds} s"
        time.sleep(0.5)
    return value
