"""Words that may stand for each other in a prompt that is to be changed a little. Sense does not matter much: blocks do."""

ENGLISH = (
    ("good", "fine"), ("bad", "poor"), ("big", "large"), ("small", "little"), ("fast", "quick"), ("show", "display"),
    ("start", "begin"), ("end", "finish"), ("help", "assist"), ("answer", "reply"), ("question", "query"), ("give", "provide"),
    ("use", "employ"), ("need", "require"), ("make", "create"), ("find", "locate"), ("explain", "describe"), ("important", "essential"),
    ("short", "brief"), ("simple", "plain"), ("correct", "right"), ("wrong", "mistaken"), ("problem", "issue"), ("also", "too"),
    ("but", "yet"), ("because", "since"), ("must", "shall"), ("many", "numerous"), ("all", "every"), ("new", "recent"),
    ("old", "former"), ("user", "person"), ("text", "passage"), ("list", "enumerate"), ("following", "next"), ("please", "kindly"),
    ("write", "compose"), ("tell", "inform"), ("keep", "retain"), ("change", "alter"), ("clear", "plain"), ("only", "just"),
    ("the", "this"), ("a", "one"), ("is", "remains"), ("are", "remain"), ("and", "as well as"), ("or", "or else"),
)  # fmt: skip
CHINESE = (
    ("请", "麻烦"), ("问题", "疑问"), ("回答", "答复"), ("帮助", "协助"), ("使用", "采用"), ("需要", "要求"), ("重要", "关键"),
    ("简单", "容易"), ("正确", "准确"), ("错误", "差错"), ("因为", "由于"), ("但是", "不过"), ("所有", "全部"), ("开始", "着手"),
    ("结束", "完成"), ("解释", "说明"), ("用户", "使用者"), ("提供", "给出"), ("内容", "文本"), ("以下", "下面"), ("和", "以及"),
    ("或", "或者"), ("很", "非常"), ("快", "迅速"), ("大", "巨大"), ("小", "微小"), ("好", "良好"), ("新", "崭新"),
)  # fmt: skip
FILLERS = ("indeed", "then", "again", "here", "now", "next", "well", "still", "perhaps", "once", "more", "today", "rather", "quite")
CHINESE_FILLERS = ("其实", "然后", "再次", "这里", "现在", "目前", "当然", "也许", "今天", "通常", "首先", "最后")

SYNONYMS = {word: other for pairs in (ENGLISH, CHINESE) for left, right in pairs for word, other in ((left, right), (right, left))}
