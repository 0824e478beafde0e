"""What the target is asked: every request about every topic. Whole topics are held out, not requests."""

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


def prompts(topics: tuple[str, ...]) -> list[str]:
    """Every request about each of `topics`, in a fixed order."""
    return [request.format(topic) for topic in topics for request in REQUESTS]


def training_prompts() -> list[str]:
    """The prompts to learn from."""
    return prompts(tuple(topic for topic in TOPICS if topic not in HELD_OUT))


def held_out_prompts() -> list[str]:
    """The prompts to measure with, of topics that no training prompt has."""
    return prompts(HELD_OUT)
