echo genuine
