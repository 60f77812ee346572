"""Prints a regular expression for the answers of SCAN (Lake and Baroni 2018): those that some command has.

    make eval EXP=scan_length PATTERN="$(.venv/bin/python experiments/scan_length/scan_grammar.py)"

A command is one phrase, or two that follow each other. A phrase is done once, twice or thrice; it is an action, a turn,
or both: an action after one turn, after two ("opposite"), or after each of four ("around").
"""

_TURNS = ("I_TURN_LEFT", "I_TURN_RIGHT")
_ACTIONS = ("I_WALK", "I_LOOK", "I_RUN", "I_JUMP")


def pattern() -> str:
    """The expression, for whole answers."""
    phrases = [" ".join([turn] * count) for turn in _TURNS for count in (1, 2, 4)]
    phrases += _ACTIONS
    for turn in _TURNS:
        phrases += [f"{turns}{action}" for turns in (f"{turn} ", f"{turn} {turn} ") for action in _ACTIONS]
        phrases += [" ".join([f"{turn} {action}"] * 4) for action in _ACTIONS]
    some = "|".join(f"{phrase}( {phrase}){{0,2}}" for phrase in phrases)
    return f"({some})( ({some}))?"


if __name__ == "__main__":
    print(pattern())
