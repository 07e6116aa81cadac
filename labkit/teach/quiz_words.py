"""What the quiz says around its questions, in both languages."""

from __future__ import annotations

from labkit.teach.quiz import Proven

WORDS = {
    "en": {
        "seed": "seed {seed} (--seed {seed} asks the same again)",
        "number": "{number} of {total}",
        "ask": "your answer (a letter, q to stop)",
        "accepted": "type one of: {letters}, or q to stop",
        "right": "Right.",
        "wrong": "No. {why}",
        "total": "{right} of {asked} right",
        "answer": "Answer: {answer}",
        "proof": "Proof: {line}",
        "run it": "run it? [y/N]",
        "yes or no": "type y to run it, or n (or only Enter) to go on",
        "step": "Step {step}: {name}",
        "aloud": "answer aloud, then press Enter",
        "common": "wrong: {answer} -> {why}",
        "level": "what was yours? ({levels}, q to stop)",
        "levels": "type one of: {levels}, or q to stop",
    },
    "zh": {
        "seed": "种子 {seed}（--seed {seed} 可重复同样的题）",
        "number": "第 {number} 题，共 {total} 题",
        "ask": "你的答案（输入字母，q 结束）",
        "accepted": "请输入 {letters} 之一，或 q 结束",
        "right": "正确。",
        "wrong": "不对。{why}",
        "total": "{asked} 题答对 {right} 题",
        "answer": "答案：{answer}",
        "proof": "证明：{line}",
        "run it": "运行吗？[y/N]",
        "yes or no": "输入 y 运行；输入 n 或直接回车继续",
        "step": "第 {step} 步：{name}",
        "aloud": "请先口头回答，再按回车",
        "common": "常见错误：{answer} -> {why}",
        "level": "你答到哪一级？（{levels}，q 结束）",
        "levels": "请输入 {levels} 之一，或 q 结束",
    },
}
#: shown beside what is typed
LEVEL_NAMES = {
    "en": {"none": "", "shallow": "", "good": "", "deep": ""},
    "zh": {"none": "没答出", "shallow": "浅", "good": "好", "deep": "深"},
}
TOPIC_NAMES = {
    "ledger": "显存账本",
    "contiguous and paged": "连续与分页",
    "fragmentation": "碎片",
    "allocators": "分配器",
    "prefix caches": "前缀缓存",
    "scheduling": "调度",
    "preemption": "抢占",
    "metrics": "指标",
    "three systems": "三个系统",
    "situations": "现场情形",
    "bonus": "加分题",
}


def topic_name(topic: str, lang: str) -> str:
    return topic if lang == "en" else TOPIC_NAMES[topic]


def proof_sentences(proven: Proven, lang: str, given: tuple[str, str]) -> list[str]:
    """One sentence for the run that has to show the answer, one for its control. `given` is what each was called with."""
    shows, control = proven.shows.holds, proven.control.holds
    if lang == "zh":
        return [
            f"实验（{given[0]}）：" + ("答案成立，符合预期。" if shows else "答案不成立，与预期不符。"),
            f"对照（{given[1]}）："
            + ("答案也成立，所以什么都没证明。" if control else "答案不成立，符合预期。"),
        ]
    return [
        f"The experiment with {given[0]}: "
        + ("the answer shows, as it should." if shows else "the answer does NOT show."),
        f"The control with {given[1]}: "
        + (
            "the answer shows here TOO, so nothing is proved."
            if control
            else "the answer does not show, as it should not."
        ),
    ]
