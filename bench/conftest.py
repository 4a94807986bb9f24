def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out the rows whose alternative takes long")
