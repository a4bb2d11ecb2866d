"""Windows of matplotlib's pictures."""


def can_open() -> bool:
    """Whether matplotlib can open windows: there is a display, and a toolkit for it."""
    import matplotlib.pyplot as plt
    from matplotlib.backends import BackendFilter, backend_registry

    try:
        plt.switch_backend(plt.get_backend())
    except ImportError:  # MPLBACKEND asks for a toolkit that does not work here
        return False
    return plt.get_backend().lower() in backend_registry.list_builtin(BackendFilter.INTERACTIVE)
