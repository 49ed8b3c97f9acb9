log = logging.getLogger("asya-runtime")
SOCKET_DIR = os.environ.get("ASYA_SOCKET_DIR", "/var/run/asya")
SOCKET = os.path.join(SOCKET_DIR, "asya-runtime.sock")
READY = os.path.join(SOCKET_DIR, "runtime-ready")
ENVELOPE = os.environ.get("ASYA_HANDLER_MODE", "payload") == "envelope"
VALIDATE = os.environ.get("ASYA_ENABLE_VALIDATION", "true") == "true"


def load(path):
    """Imports the handler that a dotted path names."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:end])
        try:
            target = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
                continue  # a class, not a module
            raise
        for name in parts[end:]:
            if inspect.isclass(target):
                target = target()
            target = getattr(target, name)
        if not callable(target):
            raise TypeError(f"ASYA_HANDLER={path} is not a function")
        return target
    raise ModuleNotFoundError(f"ASYA_HANDLER={path} is not importable: is it on PYTHONPATH?")
