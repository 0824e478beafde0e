"""What the target is asked."""

from collections.abc import Callable
from dataclasses import dataclass

TOPICS = (
    "apples", "bread", "cheese", "coffee", "tea", "rice", "soup", "honey", "salt", "chocolate",
    "dogs", "cats", "horses", "owls", "whales", "bees", "ants", "frogs", "wolves", "elephants",
    "rivers", "mountains", "deserts", "islands", "volcanoes", "forests", "lakes", "glaciers", "caves", "beaches",
    "the moon", "the sun", "comets", "Mars", "Jupiter", "black holes", "telescopes", "rockets", "satellites", "gravity",
    "trains", "bicycles", "ships", "airplanes", "bridges", "tunnels", "roads", "cars", "buses", "elevators",
    "Paris", "London", "Tokyo", "Cairo", "Rome", "Berlin", "Toronto", "Sydney", "Mumbai", "Lima",
    "football", "tennis", "chess", "swimming", "running", "skiing", "climbing", "dancing", "yoga", "sailing",
    "pianos", "guitars", "violins", "drums", "opera", "jazz", "painting", "poetry", "theatre", "photography",
    "computers", "keyboards", "databases", "compilers", "robots", "networks", "engines", "lasers", "magnets", "clocks",
    "schools", "libraries", "museums", "hospitals", "markets", "gardens", "farms", "castles", "lighthouses", "parks",
)  # fmt: skip
HELD_OUT = TOPICS[6::12]  # one or two of every group
REQUESTS = (
    "Write a list of ten facts about {}.",
    "Tell me a short story about {}.",
    "Why do people like {}?",
    "Explain {} to a child.",
    "Describe {} in three sentences.",
    "What is the history of {}?",
    "Write a poem about {}.",
    "Give me five tips about {}.",
    "What are the most common questions about {}, with answers?",
    "Write a letter to a friend about {}.",
    "Compare {} with something similar.",
    "What should a beginner know about {}?",
    "Write a dialogue between a teacher and a student about {}.",
    "Summarize what is known about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a Python dictionary with some data about {}.",
    "Invent a quiz with four questions about {}.",
    "Write the introduction of an essay on {}.",
    "How have {} changed over time?",
    "Write an advertisement that has to do with {}.",
)


COUNTING = "Write the numbers from {} to {}, separated by commas."
FIRST, LAST, LONG = 10, 90, 40


@dataclass(frozen=True)
class Prompts:
    """What is asked to learn from, and what to measure with."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]


def requests() -> Prompts:
    """Every request about every topic, whole topics held out."""
    asked = {topic: tuple(request.format(topic) for request in REQUESTS) for topic in TOPICS}
    return Prompts(
        tuple(text for topic in TOPICS if topic not in HELD_OUT for text in asked[topic]),
        tuple(text for topic in HELD_OUT for text in asked[topic]),
    )


def counting() -> Prompts:
    """Lists of numbers, which the smallest draft learns in minutes; every tenth start is held out."""
    texts = [COUNTING.format(start, start + LONG) for start in range(FIRST, LAST)]
    return Prompts(tuple(text for at, text in enumerate(texts) if at % 10 != 5), tuple(texts[5::10]))


TASKS: dict[str, Callable[[], Prompts]] = {"requests": requests, "counting": counting}
