"""A plan of `dwsr-probe fit` as a page: its words, and the peak of a worker against the size of its
blocks. One file, nothing is fetched. Called by cli/fit.py."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from bokeh.embed import file_html
from bokeh.resources import INLINE

if TYPE_CHECKING:
    from dwsr_probe.fit.plan import Plan

# Blocks of Bokeh's own template
_TEMPLATE = """{{% block postamble %}}<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; }}
pre {{ background: #8881; padding: 1rem; white-space: pre-wrap; }}
</style>{{% endblock %}}
{{% block contents %}}<h1>{{{{ title }}}}</h1>
<pre>{words}</pre>
{{{{ super() }}}}{{% endblock %}}
"""


def page_of_plan(plan: Plan) -> str:
    # The words are text of the job: a template must not see marks of its own in them.
    words = escape(str(plan)).replace("{", "&#123;").replace("}", "&#125;")
    title = f"Blocks for {plan.task}"
    found: str = file_html(plan.plot(), INLINE, title=title, template=_TEMPLATE.format(words=words))
    return found
